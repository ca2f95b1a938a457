"""What goes wrong in a run: which kinds of fault there are, when each comes, and what is true
for all of the run.
"""
