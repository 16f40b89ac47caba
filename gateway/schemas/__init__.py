"""What the schemas of all rooms share.

A room's schemas say what the admin and finance APIs take and answer: one model for each thing, with its
fields' meanings. The routes declare them, so OpenAPI and the reference pages are made from them; the command
line, the console, `florin apply` and the tests read the same ones. Fields that people fill in carry an
`Option`, from which the command line makes its options and the console its forms.
"""
