"""A camera that speaks RTSP, for Debian's own Python: `python3 rtsp_camera.py PORT`. See clips.RtspCamera."""

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer

PICTURES = "video/x-raw,format=I420,width=64,height=48,framerate=20/1"

Gst.init(None)
factory = GstRtspServer.RTSPMediaFactory()
factory.set_launch(f"( videotestsrc is-live=true pattern=red ! {PICTURES} ! jpegenc ! rtpjpegpay name=pay0 )")
factory.set_shared(True)
allowed = GstRtspServer.RTSPPermissions()
for right in ("access", "construct"):
    allowed.add_permission_for_role("viewer", f"media.factory.{right}", True)
factory.set_permissions(allowed)

token = GstRtspServer.RTSPToken()
token.set_string("media.factory.role", "viewer")
users = GstRtspServer.RTSPAuth()
users.add_basic(GstRtspServer.RTSPAuth.make_basic("anna", "s3cret"), token)

server = GstRtspServer.RTSPServer(address="127.0.0.1", service=sys.argv[1])
server.set_auth(users)
server.get_mount_points().add_factory("/camera", factory)
if not server.attach(None):
    sys.exit("the port is taken")
print("ready", flush=True)
GLib.MainLoop().run()
