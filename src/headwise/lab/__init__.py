"""The lab: a local page on which heads of a model are closed while every answer is watched.

``headwise lab`` serves it; nothing here is imported by any other room but the command line.
"""
