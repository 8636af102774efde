// __TITLE__: written by edgekit export, and not run there.
// model.tflite is a resource of the app; Podfile: pod 'MediaPipeTasksVision'
import MediaPipeTasksVision
import UIKit

final class Predictor {
  private let task: __TASK__

  init() throws {
    let options = __TASK__Options()
    options.baseOptions.modelAssetPath = Bundle.main.path(forResource: "model", ofType: "tflite")!
    options.runningMode = .image
__SWIFT_OPTIONS__
    task = try __TASK__(options: options)
  }

  /// The image's orientation is `.up`.
  func predict(_ image: UIImage) throws -> __SWIFT_TYPE__ {
//? not stretch
    let width = (image.size.width * image.scale).rounded(), height = (image.size.height * image.scale).rounded()
//.
//? crop
    let scale = min(width / __WIDTH__, height / __HEIGHT__) * __CROP__
    let w = max(1, (__WIDTH__ * scale).rounded(.toNearestOrEven)), h = max(1, (__HEIGHT__ * scale).rounded(.toNearestOrEven))
    let left = ((width - w) / 2).rounded(.down), top = ((height - h) / 2).rounded(.down)
//.
//? letterbox
    let scale = min(__WIDTH__ / width, __HEIGHT__ / height)
    let w = max(1, (__WIDTH__ / scale).rounded(.toNearestOrEven)), h = max(1, (__HEIGHT__ / scale).rounded(.toNearestOrEven))
    let around = { (side: CGFloat, own: CGFloat) in
      (-((side - max(1, (own * scale).rounded(.toNearestOrEven))) / 2).rounded(.down) / scale).rounded(.toNearestOrEven)
    }
    let left = around(__WIDTH__, width), top = around(__HEIGHT__, height)
//.
//? region
    let region = CGRect(x: left / width, y: top / height, width: w / width, height: h / height)
    return try task.__VERB__(image: MPImage(uiImage: image), regionOfInterest: region).__SWIFT_ANSWER__
//.
//? frame
    let format = UIGraphicsImageRendererFormat()
    format.scale = 1
    let framed = UIGraphicsImageRenderer(size: CGSize(width: w, height: h), format: format).image { context in
      UIColor(white: __PADDING__ / 255, alpha: 1).setFill()
      context.fill(CGRect(x: 0, y: 0, width: w, height: h))
      image.draw(in: CGRect(x: -left, y: -top, width: width, height: height))
    }
    // Boxes lie in the frame: add (left, top) to them.
    return try task.__VERB__(image: MPImage(uiImage: framed)).__SWIFT_ANSWER__
//.
//? stretch
    return try task.__VERB__(image: MPImage(uiImage: image)).__SWIFT_ANSWER__
//.
  }
}
