"""top/: ``rowlock top``, the status as a picture that keeps itself new. It only looks."""
