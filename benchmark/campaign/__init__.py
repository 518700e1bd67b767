"""Runs that take longer than a machine is lent for: in order of worth, in pieces, wherever there is time."""
