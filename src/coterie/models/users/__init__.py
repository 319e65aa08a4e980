"""Users' models as CAB asks for them: one representation per file."""
