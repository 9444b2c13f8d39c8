"""What people look at: tables and figures. Nothing is computed here."""
