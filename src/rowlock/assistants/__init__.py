"""assistants/: a window for programs that help people: questions by the Model Context Protocol.

It needs the extra ``mcp``, and no module below imports it.
"""
