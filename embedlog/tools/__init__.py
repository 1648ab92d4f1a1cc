"""What a person operates a log with: the command line, the console, the dump of files, and the
handover to a broker.
"""
