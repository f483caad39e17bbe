"""Reads what the usual commands of a machine print, as the sections of ddoctor's collectors."""
