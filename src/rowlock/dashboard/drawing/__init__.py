"""drawing/: small pictures, as SVG that no policy forbids."""
