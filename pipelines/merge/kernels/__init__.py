"""C sources of `pipelines.merge.native`."""
