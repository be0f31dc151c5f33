"""Parts that several methods share: distillation, label expansion, replay, drift, adapters."""
