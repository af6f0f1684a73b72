"""Sweeps: the cases of one configuration, divided into tasks that run on one or several kinds of machine."""
