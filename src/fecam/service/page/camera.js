// Pictures from the camera, where there is one and the person allows it.

const SIDE = 640;

const REASONS = {
  NotAllowedError: "The browser may not use the camera. Allow it in the address bar, or choose a picture.",
  NotFoundError: "There is no camera here. Choose a picture instead.",
  NotReadableError: "The camera is busy: another program uses it.",
};

export class Camera {
  constructor(video) {
    this.video = video;
    this.stream = null;
  }

  get on() {
    return this.stream !== null;
  }

  async start() {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("The browser gives the camera only to pages over https or on this very machine. Choose a picture instead.");
    }
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      throw new Error(REASONS[error.name] ?? "The camera does not start. Choose a picture instead.");
    }
    this.video.srcObject = this.stream;
    await this.video.play();
  }

  stop() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = null;
    this.video.srcObject = null;
  }

  // The middle square of what is seen, as base64 of a JPEG.
  shoot() {
    const { videoWidth: width, videoHeight: height } = this.video;
    const side = Math.min(width, height);
    const sheet = Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
    sheet.getContext("2d").drawImage(this.video, (width - side) / 2, (height - side) / 2, side, side, 0, 0, SIDE, SIDE);
    return sheet.toDataURL("image/jpeg", 0.92).split(",")[1];
  }
}
