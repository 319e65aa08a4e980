"""The log and the model as files: Parquet, dsjson and safetensors."""
