"""torchpbp compared with other libraries, with other checkouts and with its targets; see README.md in this folder."""
