"""After the shards: models trained on them, merged and evaluated."""
