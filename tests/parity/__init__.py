"""Golden numbers of other people's code: a file holds what a released code computed, and in what setting."""
