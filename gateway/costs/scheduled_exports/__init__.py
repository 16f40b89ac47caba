"""FOCUS files of every month, written by schedule to where other tools read them."""
