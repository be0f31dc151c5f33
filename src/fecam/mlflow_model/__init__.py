"""Models in MLflow: a ``.fecam`` file as a pyfunc model, which any tool of MLflow can serve."""

from fecam.mlflow_model.pyfunc import PyfuncModel, save_model

__all__ = ["PyfuncModel", "save_model"]
