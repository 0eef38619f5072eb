"""The lab: a local page to close heads of a model and watch every answer change.

``headwise lab`` serves it; nothing here is imported by any other room but the command line.
"""
