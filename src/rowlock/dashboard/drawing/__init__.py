"""Small pictures: SVG without styles of its own, so that no policy forbids it."""
