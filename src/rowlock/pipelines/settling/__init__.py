"""Stage 4: writes what became of a row, or releases it."""
