"""What became of leases, as the database wrote it down, and whether all promises were kept."""
