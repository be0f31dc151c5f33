"""What MLflow runs to load a saved model."""

from mlflow.models import set_model

from fecam.mlflow_model.pyfunc import PyfuncModel

set_model(PyfuncModel())
