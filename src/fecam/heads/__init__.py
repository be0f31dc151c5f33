"""The other classifiers on features, with the same contract as FeCAM."""
