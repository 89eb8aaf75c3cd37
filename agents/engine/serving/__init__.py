"""The embedded engine behind OpenAI's HTTP API. Made by `app.make_app`; served by `pipelines.serve`. No torch."""
