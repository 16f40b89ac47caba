"""The console: pages for browsers at /console, for operators, customers and finance.

A page is a client of the admin and finance API, in the same process (`api_client`): so each action has the
same rights, checks, errors and audit as the command of `florin` that does it. Nothing here reads or changes
state in another way. `console` receives requests; `pages/` has one module per subject; `templates/` and
`static/` are what they are made of. No page needs a build step, and none loads anything from elsewhere.
"""
