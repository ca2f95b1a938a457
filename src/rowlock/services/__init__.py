"""What a request handler of the host calls: hold rows, request work, change what is due."""
