"""guarding/: who may look and act, and which requests are refused."""
