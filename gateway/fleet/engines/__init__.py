"""Engines, as the API and the commands offer them: registration, draining, enrolment, agents."""
