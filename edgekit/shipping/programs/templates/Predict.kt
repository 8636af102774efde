// __TITLE__: written by edgekit export, and not run there.
// model.tflite goes to src/main/assets; build.gradle.kts: implementation("com.google.mediapipe:tasks-vision:latest.release")
import android.content.Context
import android.graphics.Bitmap
//? frame
import android.graphics.Canvas
import android.graphics.Color
//.
//? region
import android.graphics.RectF
//.
import com.google.mediapipe.framework.image.BitmapImageBuilder
import com.google.mediapipe.tasks.core.BaseOptions
import com.google.mediapipe.tasks.vision.core.ImageProcessingOptions
import com.google.mediapipe.tasks.vision.core.RunningMode
import com.google.mediapipe.tasks.vision.__KOTLIN_PACKAGE__.__TASK__
import kotlin.math.max
import kotlin.math.min
import kotlin.math.round

class Predictor(context: Context) : AutoCloseable {
    private val task = __TASK__.createFromOptions(context, __TASK__.__TASK__Options.builder()
        .setBaseOptions(BaseOptions.builder().setModelAssetPath("model.tflite").build())
        .setRunningMode(RunningMode.IMAGE)__KOTLIN_OPTIONS__.build())

    /** The bitmap is upright and ARGB_8888. */
    fun predict(bitmap: Bitmap) = bitmap.run {
//? region
        val scale = min(width / __WIDTH__.0, height / __HEIGHT__.0) * __CROP__
        val w = max(1, round(__WIDTH__ * scale).toInt())
        val h = max(1, round(__HEIGHT__ * scale).toInt())
        val left = (width - w) / 2
        val top = (height - h) / 2
        val region = RectF(left / width.toFloat(), top / height.toFloat(), (left + w) / width.toFloat(), (top + h) / height.toFloat())
        val options = ImageProcessingOptions.builder().setRegionOfInterest(region).build()
        task.__VERB__(BitmapImageBuilder(bitmap).build(), options).__KOTLIN_ANSWER__
//.
//? frame
//? letterbox
        val scale = min(__WIDTH__.0 / width, __HEIGHT__.0 / height)
        val left = round(-((__WIDTH__ - max(1, round(width * scale).toInt())) / 2) / scale).toFloat()
        val top = round(-((__HEIGHT__ - max(1, round(height * scale).toInt())) / 2) / scale).toFloat()
        val framed = Bitmap.createBitmap(max(1, round(__WIDTH__ / scale).toInt()), max(1, round(__HEIGHT__ / scale).toInt()), Bitmap.Config.ARGB_8888)
//.
//? crop
        val scale = min(width / __WIDTH__.0, height / __HEIGHT__.0) * __CROP__
        val framed = Bitmap.createBitmap(max(1, round(__WIDTH__ * scale).toInt()), max(1, round(__HEIGHT__ * scale).toInt()), Bitmap.Config.ARGB_8888)
        val left = ((width - framed.width) / 2).toFloat()
        val top = ((height - framed.height) / 2).toFloat()
//.
        Canvas(framed).apply { drawColor(Color.rgb(__PADDING__, __PADDING__, __PADDING__)) }.drawBitmap(bitmap, -left, -top, null)
//? boxes
        task.__VERB__(BitmapImageBuilder(framed).build()).__KOTLIN_ANSWER__.onEach { it.boundingBox().offset(left, top) }
//.
//? not boxes
        task.__VERB__(BitmapImageBuilder(framed).build()).__KOTLIN_ANSWER__
//.
//.
//? stretch
        task.__VERB__(BitmapImageBuilder(bitmap).build()).__KOTLIN_ANSWER__
//.
    }

    override fun close() = task.close()
}
