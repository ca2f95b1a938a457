"""What a request handler of the host calls: hold a row, request work on it, ask what is due,
write a handler's change.
"""
