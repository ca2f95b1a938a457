"""Exchanging: messages go from stage to stage, to the shards that own their keys, within a step."""
