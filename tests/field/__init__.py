"""What people really sent, brought and ran: public reports and files, each turned into a test.

One case a file. Its docstring says where the case is from, what was sent, what is right, and why. A case that needs
nothing but a gateway and a fake engine, or no gateway at all, is here; one that only a real engine can show is in
tests/engine/field/. README.md lists both; `python -m tests.field` writes it anew.
"""
