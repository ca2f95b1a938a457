"""Work that goes on under its lease: what it writes meanwhile, and how it is asked to stop."""
