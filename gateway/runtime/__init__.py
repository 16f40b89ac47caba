"""What a process needs beside requests: clock, disk, TLS, settings that change."""
