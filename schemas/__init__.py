"""The records that flow through the pipeline: pydantic models and their Arrow tables. Imports nothing of ours above."""
