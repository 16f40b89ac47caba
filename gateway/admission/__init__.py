"""What a worker takes on, decided before it costs anything: how complex a body may be, how much of whom is in
flight, and whose turn it is. All of it is pure accounting, without I/O; others act on it."""
