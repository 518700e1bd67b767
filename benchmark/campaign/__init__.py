"""Campaigns: lists of runs in order of importance, trained in sessions whenever and wherever a machine is free."""
