"""The lock written into the row: claim, renew, load, apply, release. The only room that runs SQL writing ``lock_*`` columns."""
