"""What the tests of bridges share."""

import os

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when MLflow is imported
