"""Stage 2: keeps the leases of all rows that are in hand. Knows no other stage."""
