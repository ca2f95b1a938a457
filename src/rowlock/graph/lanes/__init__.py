"""Where calls run: in the event loop, in threads, or in child processes."""
