"""watching/: answers that are asked for again and again."""
