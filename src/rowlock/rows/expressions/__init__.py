"""Expressions of the host's and ours, compared and named: which statements are alike, and which
values a claim can read.
"""
