"""Replicas that die, or are frozen, at every await and at every statement."""
