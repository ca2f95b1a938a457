"""The actors: fetcher, workers, heartbeater and what holds them together. Loops and decisions; no SQL."""
