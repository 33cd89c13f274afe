"""The compiled side: maca.h, the cffi binding ``_binding`` and the host library ``lib/libmaca_host.so``."""
