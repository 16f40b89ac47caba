"""Adapters and their versions.

registration      every change of an adapter; start here
ingest            before it: files fetched or unpacked, checked, and stored (`artifacts`)
changes/          the changes as pure plans; `change_context` is what they read
transaction       commits a plan, or plans again if the registry has changed meanwhile
catalog           what every worker then knows, and the resolution of names
canary*           who gets a canary, what is counted of it, and when its guard stops it
serving_status    versions that are not served, and why
"""
